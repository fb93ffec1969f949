"""The sections of benchmarks/README.md: each has TITLE, RESULT, COMMAND and `render(record)`.

RESULT names `results/<RESULT>.json`, or a folder of such files, which `render` gets as name -> record.
MISSING, where a section has it, is said when there is none. A new section is a name in `report.py`'s list.
"""
