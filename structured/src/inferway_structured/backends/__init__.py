"""The libraries that turn a spec into masks, one file each, and the choice among them.

vocabulary   a tokenizer -> what each library makes of it, once
llguidance, xgrammar   a spec -> Compiled
schemas      a JSON Schema -> an equal one that llguidance keeps, and what is left over
xgrammar_schemas   the same for xgrammar, in tags that only it reads
cascade      a spec -> the library that keeps most of it, and what nobody keeps

The libraries are imported when a vocabulary first needs them.
"""
