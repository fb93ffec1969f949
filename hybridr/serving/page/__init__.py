"""The page: one page in the browser that compares rankings and collects judgements."""
