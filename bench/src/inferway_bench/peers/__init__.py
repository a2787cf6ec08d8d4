"""`inferway bench peers`: ours and others in front of one fleet, with the same requests."""
