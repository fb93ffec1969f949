"""The verbs of the command `hybridr`; each module adds its verbs when it is imported."""
