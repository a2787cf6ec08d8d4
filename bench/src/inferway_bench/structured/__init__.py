"""`inferway bench structured`: schemas and instances -> what each library keeps of them."""
