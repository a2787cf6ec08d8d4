"""Which engines there are: a list in the settings, a watched file, DNS, Ray, or Kubernetes.

Every source does the same: it tells the whole list, first as soon as it knows one, then whenever it
has changed. What an engine is, the fleet asks the engine itself.
"""
