"""The verbs of the command `hybridr`, one or a few per module; a module adds its verbs when it is
imported.
"""
