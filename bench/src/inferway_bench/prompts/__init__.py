"""`inferway bench prompts`: real chats -> what their tokens cost, beside transformers."""
