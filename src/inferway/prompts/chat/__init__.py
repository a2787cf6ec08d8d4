"""Chats -> text: bodies, templates and the limits within which templates are rendered."""
