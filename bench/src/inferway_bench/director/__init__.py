"""`inferway bench director`: growing chats -> what a decision costs, and how it grows."""
