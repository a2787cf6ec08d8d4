"""Profile handlers, and what they ask."""
