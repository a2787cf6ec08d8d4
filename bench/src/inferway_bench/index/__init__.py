"""`inferway bench index`: the same blocks in our index and in Dynamo's RadixTree."""
