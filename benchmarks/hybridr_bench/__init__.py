"""Speed measured side by side with what one would use otherwise, in one run on one machine."""
