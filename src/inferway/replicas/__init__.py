"""Several gateways in front of the same engines, each of which decides as if it had sent all
requests: they tell each other what is on its way, and what they have learned.

messages       what is told, and what of it can be true
outbox         what this gateway tells: changes at once, all of it once a second
peer           another gateway: what it has told, and what ends with it
learning       who takes over what was learned
sockets        from each to each, over ZeroMQ
channel        over the publish/subscribe of a Redis
replicas       all of it together, with its clock
told           what operators see of it

Messages may be lost, doubled or late. Each has a number; an older one than the last is not heard.
What changes is told at once, what is so is told again once a second, in ranges that leave nothing
out: so whatever was lost is known a second later. Clocks differ, and nobody tells a time, only how
long ago something was. Who is silent has gone, with all that it has told.
"""
