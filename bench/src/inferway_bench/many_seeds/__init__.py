"""`inferway bench many-seeds`: which differences between policies a few seeds can show."""
