"""Bridges to other libraries. Each is imported from its own module, and needs the extra that its error names."""
