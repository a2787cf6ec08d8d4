"""`inferway bench autoscale`: engines that come and go with the load, beside who knows the load."""
