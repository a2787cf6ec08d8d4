from __future__ import annotations

import pytest

from inferway_structured.errors import SpecError
from inferway_structured.validate.ebnf import check_ebnf, is_ebnf


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('root ::= "a"', True),
        ('start: "a"', False),
        ('start: "a" // root ::= "b"', False),
        ('# root ::= x\nstart: "a"', False),
        ("", False),
    ],
)
def test_ebnf_is_told_from_lark_as_vllm_does(text: str, expected: bool) -> None:
    assert is_ebnf(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a" | b # comment\nb ::= [0-9]+ "x"*\n',
        'root ::= ("a" b)? (b | "c"){1,3}\nb ::= [^"\\]\\n]\n',
        'root ::= "\\"quoted\\" ::= [" b\nb ::= ""',
        'root ::= (\n "a"\n |\n "b")\n',
        'root ::= b (= "x")\nb ::= "y"',
        'b-1 ::= "y"\nroot ::= b-1 root | ""',
        'root ::= TagDispatch(("tag", b), stop_eos=true)\nb ::= "y"',
    ],
)
def test_a_grammar_that_holds_together(text: str) -> None:
    check_ebnf(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('x ::= "a"', "there is no rule `root`"),
        ("root ::= foo", "line 1: there is no rule 'foo'"),
        ('root ::= ("a"\n', "line 2: a bracket is not closed"),
        ('root ::= "a")', "line 1: a bracket is closed that was not opened"),
        ('root ::= ("a"\nb ::= "c"', "line 2: a bracket of the rule before is not closed"),
        ('root ::= "a\n"', "line 1: '\"' cannot stand here"),
        ('root ::= "a"\n\n"b" ::= "c"', "line 3: a rule's name is needed before `::=`"),
        ('root ::= "a"{9000}\nb ::= "c"{1,1001}', "line 2: repeats add up to more than 10000"),
        ("root ::= a & b", "line 1: '&' cannot stand here"),
    ],
)
def test_one_that_does_not_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        check_ebnf(text)

    assert str(refused.value) == f"not an EBNF grammar: {words}"
    assert refused.value.keyword == "grammar"
