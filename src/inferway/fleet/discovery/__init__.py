"""Discovery of engines: a list in the settings, a watched file, DNS, Ray, or Kubernetes.

Every source reports the whole list of engines, first as soon as it knows one, then whenever the
list has changed. The fleet asks each engine itself for its models and properties.
"""
