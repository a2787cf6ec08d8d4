"""block key -> holders, in a Redis (or Valkey) that several gateways share.

What lies where, under `PREFIX:1:` (1 is the version of this layout). NAME is a holder's, the
same in every gateway:

    fence               counter: every lease and every new picture gets a number of its own
    NAME                hash, the record: whose picture it is (lease), which (epoch), the last batch
                        in it; state, seq and digest as its writer told; its windows and lower
                        tiers; the names of its sets, and of those of one being written (new)
    NAME:lease          "TOKEN GATEWAY" of the one writer, with a time to live
    NAME:held           set: the blocks that a prompt can reach, 8 bytes each. Closed under
                        "parent of", so that a match may halve instead of walking
    NAME:t1, NAME:t2 …  sets: those of them whose best tier is that lower one
    NAME:g1, NAME:g2 …  sets: the blocks of other KV-cache groups (sliding windows)
    NAME:new:…          sets: a new picture of the same, until it takes their place at once

Redis holds no truth of its own. Each gateway that hears an engine's events keeps, in `chains`,
all that is needed to write the engine's sets anew: a lost Redis, a lost lease, too long a queue
and a dead writer all end the same way, in a picture written from scratch by who holds the lease.
"""

from inferway.kv.index.redis.connection_health import RedisLimits
from inferway.kv.index.redis.index import RedisIndex

__all__ = ["RedisIndex", "RedisLimits"]
