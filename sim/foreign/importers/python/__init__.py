"""What a Python file sets, read as text by its syntax tree; nothing in it is run."""
