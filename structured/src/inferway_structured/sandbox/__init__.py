"""A job that nobody vouches for -> its result, or what it was killed for."""
