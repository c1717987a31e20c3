"""How counts are said to people."""


def counted(number: int, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "document"), counted(2000, "document")
    ('1 document', '2,000 documents')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
