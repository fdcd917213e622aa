"""Files of other tools: `importers` read them as scenarios, `exporters` write plans in their words.

What a key means is a row of a table (`sim/presets/importers`). What is left here is arithmetic of several keys, two
languages that are read without being run (shell scripts and Python recipes), and the account of what was read, for
thirty kinds of files. That makes it the largest room.
"""
