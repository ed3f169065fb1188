"""The fault bench: plants one fault in a healthy net and asks the rules (see README.md)."""
