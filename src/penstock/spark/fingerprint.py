"""What errors have in common: their text without what differs from message to message. As SQL, for the executors."""

from __future__ import annotations

# In this order; both Java and Python understand them. What stands for a value is not taken for one afterwards.
PATTERNS = (
    (r"\b[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\b", "<id>"),
    (r"\b0x[0-9a-fA-F]+\b", "<id>"),
    # Quotation marks by their codes, since they stand in SQL as well; one within a word is an apostrophe.
    (r"(?<!\w)\x27[^\x27]*\x27|\x22[^\x22]*\x22", "<text>"),
    (r"[0-9]+(?:[.,:][0-9]+)*", "<n>"),
    (r"[ \t\r\n]+", " "),
)
MOST = 200  # characters that count


def normalised_sql(column: str) -> str:
    """Return the SQL for a text without ids, quotations and numbers; null is ''."""
    made = f"coalesce({column}, '')"
    for pattern, sign in PATTERNS:
        made = f"regexp_replace({made}, r'{pattern}', '{sign}')"
    return f"left(trim({made}), {MOST})"
