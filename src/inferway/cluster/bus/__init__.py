"""Processes of one gateway, and several gateways, tell each other what they do, so that each
decides as if it had sent all requests.

messages       what hub and workers tell each other
link           between the hub and a worker: a socket that loses nothing
workers        what a worker tells the others, through the hub
peer_messages  the kind of message that workers and gateways tell each other
inbox          takes over what others tell
outbox         what this gateway tells others: changes at once, all that is so once a second
sound          messages of other gateways as bytes, and what of them can be true
peer           another gateway: what it has told, and what ends with it
replicas       this gateway among the others, with its clock, and what operators see of them
sockets        from each gateway to each, over ZeroMQ
channel        over the publish/subscribe of a Redis

Messages between gateways may be lost, doubled or late. Each has a number: an older one than the
last is not heard, and if one is missing all of its sender is forgotten until it tells all that is
so again, a second later at most. Clocks differ, and nobody tells a time, only how long ago
something was. Who is silent has gone, with all that it has told.
"""
