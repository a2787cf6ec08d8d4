"""The commands `inferway explain` and `inferway record`."""
