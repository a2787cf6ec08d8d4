"""A JSON Schema -> one that says the same in the words llguidance keeps, and what it cannot say.

nodes      a document -> its schemas as nodes: one dialect, references followed, each look counted
shapes     a node -> its types, its finite values, whether it takes a value
disjoint   two nodes -> whether no value can be both
negation   a node -> what it is not
objects, strings   keywords of objects, arrays and strings that have to be said differently
said       pieces of what is said, put together
numbers    those that llguidance holds without losing digits
texts      patterns and formats, as far as the library takes them
weight     how much a schema makes of itself inside the library
lowering   a document -> the schema for llguidance, and what was left out

Every step is exact, or lets more through and says where: never less, so that no valid answer is
lost, and nothing invalid passes unnamed. All of it is pure.
"""
