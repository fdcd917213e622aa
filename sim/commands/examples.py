"""Examples under the help text of a verb, one a line."""


def examples(*lines: str) -> str:
    """What follows the options in --help; each example is what one types after `flopcast`.

    Blank lines between them keep a help text from running them into one paragraph.
    """
    return "\n\n".join([f"Example{'s' if len(lines) > 1 else ''}:", *(f"flopcast {line}" for line in lines)])
