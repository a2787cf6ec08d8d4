"""A schema document -> one that llguidance keeps in full, and what it could not say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferway_structured.backends.schemas import numbers, objects
from inferway_structured.backends.schemas.automata import finite_texts
from inferway_structured.backends.schemas.disjoint import Disjoint, all_of_it
from inferway_structured.backends.schemas.negation import Negate
from inferway_structured.backends.schemas.nodes import Document, JsonValue, Node
from inferway_structured.backends.schemas.said import (
    Said,
    add_all,
    add_any,
    alternatives,
    by_schema,
    in_order,
    joined,
    num_ways,
    of_types,
    spend_copies,
)
from inferway_structured.backends.schemas.shapes import spelled, takes, types
from inferway_structured.backends.schemas.strings import in_rust, is_everything
from inferway_structured.backends.schemas.texts import How, Texts, Words
from inferway_structured.backends.schemas.weight import MAX_REMAINDERS, num_remainders
from inferway_structured.grammar import Unenforced

_COPIED = frozenset(
    {
        *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("multipleOf", "minLength", "maxLength", "minItems", "maxItems"),
    }
)
_DONE_ELSEWHERE = frozenset(
    {
        *("then", "else", "minContains", "maxContains"),  # with `if` and `contains`
        *("patternProperties", "additionalProperties", "propertyNames"),  # with the object
        *("required", "minProperties", "maxProperties"),
    }
)
_OBJECT = frozenset(
    {
        *("properties", "patternProperties", "additionalProperties", "propertyNames"),
        *("required", "minProperties", "maxProperties", "unevaluatedProperties"),
    }
)
_SIZES = frozenset({"minProperties", "maxProperties"})
_MAX_PAIRS = 2_000  # of branches of one oneOf, compared
_MAX_ONE_OF = 3  # inside each other, of which each doubles the text of those inside
_MAX_NEGATED = 8  # branches of one oneOf that a branch must be kept apart from
_FEW_REMAINDERS = 100  # of one `multipleOf`: several of a value multiply


class Lowering:
    """Raises TooLargeError when the document's work is spent."""

    def __init__(self, document: Document, words: Words, how: How) -> None:
        self._document = document
        self._work = document.work
        self._words = words
        self._how = how
        self._names: dict[str, str] = {}  # place of what is referred to -> its name
        self._waiting: list[Node] = []
        self._left_out: dict[Unenforced, None] = {}
        self._lowered: dict[str, tuple[Said, bool]] = {}  # by place; whether nothing was left out
        self._is_whole = True  # of what is being lowered, so far
        self._num_one_of = 0  # around what is being lowered
        self._disjoint = Disjoint(lambda a, b: words.patterns_disjoint([in_rust(a), in_rust(b)]))
        self._negate = Negate(self._lower_whole, self._disjoint)
        self._texts = Texts(words, how, self.leave_out)

    def run(self) -> tuple[JsonValue, tuple[Unenforced, ...]]:
        root = self.lower(self._document.root)
        definitions: dict[str, Said] = {}
        while self._waiting:
            node = self._waiting.pop()
            definitions[self._names[node.place]] = self.lower(node)
        if definitions and isinstance(root, dict):
            root = {**root, "$defs": definitions}
        return root, tuple(self._left_out)

    def places_of(self, name: str | None) -> frozenset[str]:
        """Return the place in the document that a definition came from; None: of all of them."""
        return frozenset(place for place, own in self._names.items() if name in (own, None))

    def leave_out(self, node: Node, *keywords: str) -> None:
        for keyword in keywords:
            if keyword in node.keywords or not isinstance(node.raw, dict):
                spelled_there = _as_written(node, keyword)
                self._left_out[Unenforced(node.place, spelled_there)] = None
                self._is_whole = False

    def lower(self, node: Node) -> Said:
        """Lets through what the node does, and more where something is left out."""
        return self._lower_whole(node)[0]

    def _lower_whole(self, node: Node) -> tuple[Said, bool]:
        """Return what is said of a node, and whether nothing was left out. It is worked out once:
        each branch of a `oneOf` that another may hold beside is asked for again."""
        found = self._lowered.get(node.place)
        if found is None:
            before, self._is_whole = self._is_whole, True
            said = self._lower(node)
            found = self._lowered[node.place] = said, self._is_whole
            self._is_whole = before
        self._is_whole &= found[1]
        return found

    def _lower(self, node: Node) -> Said:
        keywords = node.keywords
        if "never" in keywords:
            return False
        out: dict[str, Any] = {}
        also: list[Said] = []
        most_remainders = _FEW_REMAINDERS if self._how.barely else MAX_REMAINDERS
        if not _OBJECT.isdisjoint(keywords):
            self._object(node, out, also)
        for word, rule in keywords.items():
            if word == "multipleOf" and num_remainders(rule) > most_remainders:
                self.leave_out(node, word)
            elif word in _COPIED and numbers.is_kept(word, rule):
                out[word] = rule
            elif word in _COPIED:
                self._number(node, word, rule, also)
            elif word not in _DONE_ELSEWHERE and word != "properties":
                self._word(node, word, rule, out, also)
        if not numbers.keeps_multiples(out):
            del out["multipleOf"]
            self.leave_out(node, "multipleOf")
        own = numbers.of_numbers(out)
        if own is None:
            return False
        return numbers.narrowed(joined(in_order(own, keywords), also, self._work))

    def _word(
        self, node: Node, word: str, rule: Any, out: dict[str, Any], also: list[Said]
    ) -> None:
        match word:
            case "pattern" | "format":
                if word == "pattern" or "pattern" not in node.keywords:
                    self._texts.say(node, out, also)
            case "prefixItems":
                out[word] = [self.lower(inner) for inner in rule]
            case "items":
                out[word] = self.lower(rule)
            case "allOf":
                add_all([self.lower(inner) for inner in rule], out, also, self._work)
            case "anyOf":
                add_any([self.lower(inner) for inner in rule], out, also)
            case "oneOf":
                add_any(self._one_of(node, rule), out, also)
            case "$ref":
                self._reference(node, rule, out, also)
            case "malformed":
                for name in rule:
                    self._left_out[Unenforced(node.place, name)] = None
                self._is_whole = False
            case "unevaluatedProperties" | "never":
                pass  # with the object; False said before
            case _:
                self._otherwise(node, word, rule, also)

    def _number(self, node: Node, word: str, rule: Any, also: list[Said]) -> None:
        """Return what is left of a keyword with a number that is not kept."""
        if word in numbers.MOST:
            return  # no answer has as many
        self.leave_out(node, word)
        if word in ("const", "enum"):
            values = [rule] if word == "const" else rule
            kept = [value for value in values if numbers.is_kept("const", value)]
            lost = sorted({_type_of(value) for value in values if value not in kept})
            also.append({"anyOf": [*([{"enum": kept}] if kept else []), {"type": lost}]})

    def _reference(self, node: Node, target: Node, out: dict[str, Any], also: list[Said]) -> None:
        target = target.target
        if _is_leaf(target):
            said = self.lower(target)
            if said is not True:
                also.append(said)
            return
        meets = len(node.keywords) > 1 or "/allOf/" in node.place[-8:]
        if target.place in self._how.unsaid or (meets and target.place in self._how.alone):
            self.leave_out(node, "$ref")
            return
        name = self._names.get(target.place)
        if name is None:
            name = self._names[target.place] = f"d{len(self._names)}"
            self._waiting.append(target)
        out["$ref"] = f"#/$defs/{name}"

    # What has to be said otherwise: alternatives, of which one must hold.

    def _otherwise(self, node: Node, word: str, rule: Any, also: list[Said]) -> None:
        lists = None
        if word in ("uniqueItems", "contains"):
            ways = self._array(node, word, rule)
            lists = None if ways is None else [ways]
        elif not self._how.plainly:
            lists = self._said_otherwise(node, word, rule)
        most = objects.MAX_ARRAYS if word == "uniqueItems" else objects.MAX_WAYS
        for ways in [None] if lists is None else lists:
            self._ways(node, word, ways, also, most)

    def _ways(
        self,
        node: Node,
        word: str,
        ways: list[Said] | None,
        also: list[Said],
        most: int = objects.MAX_WAYS,
    ) -> None:
        if ways is None or num_ways(also) * len(ways) > most:
            self.leave_out(node, word)
            return
        if True in ways:
            return
        kinds = types(node)
        left = [one for one in (of_types(way, kinds) for way in ways) if one is not False]
        also.append(False if not left else left[0] if len(left) == 1 else {"anyOf": left})

    def _said_otherwise(self, node: Node, word: str, rule: Any) -> list[list[Said]] | None:
        match word:
            case "not":
                negation = self._negate(rule, types(node), all_of_it(node))
                if not negation.exact:
                    self.leave_out(node, word)
                return [alternatives(negation.said)]
            case "if":
                return [self._if(node, rule)]
            case "dependentRequired":
                return objects.dependent_ways(rule)
            case "dependentSchemas":
                return [
                    [
                        {"properties": {name: False}},
                        joined({"required": [name]}, [self.lower(inner)], self._work),
                    ]
                    for name, inner in rule.items()
                ]
        return None

    def _array(self, node: Node, word: str, rule: Any) -> list[Said] | None:
        if "array" not in types(node) or rule is False:
            return [True]
        if word == "uniqueItems":
            return _unless_none(objects.unique_ways(node), node, "array")
        ways = objects.contains_ways(node, self.lower(rule), self._work)
        return _unless_none(ways, node, "array")

    def _if(self, node: Node, condition: Node) -> list[Said]:
        then, other = (node.keywords.get(word) for word in ("then", "else"))
        then_said = True if then is None else self.lower(then)
        else_said = True if other is None else self.lower(other)
        if then_said is True and else_said is True:
            return [True]
        negation = self._negate(condition, types(node), all_of_it(node))
        if not negation.exact:
            self.leave_out(node, "if")
        return [
            joined({}, [self.lower(condition), then_said], self._work),
            joined({}, [negation.said, else_said], self._work),
        ]

    def _one_of(self, node: Node, branches: Sequence[Node]) -> list[Said]:
        """Each branch and none of those that could hold beside it."""
        self._num_one_of += 1
        said = [self.lower(branch) for branch in branches]
        self._num_one_of -= 1
        is_deep = self._num_one_of >= _MAX_ONE_OF
        if len(branches) ** 2 / 2 > _MAX_PAIRS:
            self.leave_out(node, "oneOf")
            return said
        kinds = types(node)
        exact = True
        ways = []
        for branch, own in zip(branches, said, strict=True):
            rest = [
                other
                for other in branches
                if other is not branch and not self._disjoint(branch, other, node)
            ]
            if not rest:
                ways.append(own)
                continue
            if self._how.plainly or is_deep or len(rest) > _MAX_NEGATED:
                exact = False
                ways.append(own)
                continue
            given = [*all_of_it(branch), *all_of_it(node)]
            nots = [self._negate(other, kinds & types(branch), given) for other in rest]
            exact = exact and all(one.exact for one in nots)
            ways.append(joined({}, [own, *(one.said for one in nots)], self._work))
        if not exact:
            self.leave_out(node, "oneOf")
        return ways

    # Objects.

    def _object(self, node: Node, out: dict[str, Any], also: list[Said]) -> None:
        keywords = node.keywords
        listed = keywords.get("properties", {})
        said = {name: self.lower(inner) for name, inner in listed.items()}
        if "properties" in keywords:
            out["properties"] = said
        if "required" in keywords and isinstance(keywords["required"], list):
            out["required"] = keywords["required"]
        self._others(node, out)
        if "unevaluatedProperties" in keywords:
            self._unevaluated(node, out, also)
        if "propertyNames" in keywords:
            self._property_names(node, keywords["propertyNames"], out)
        self._sizes(node, out, also)

    def _others(self, node: Node, out: dict[str, Any]) -> None:
        """Say patternProperties and additionalProperties."""
        keywords = node.keywords
        if "additionalProperties" in keywords:
            out["additionalProperties"] = self.lower(keywords["additionalProperties"])
        elif self._how.closed and ("properties" in keywords or "patternProperties" in keywords):
            out["additionalProperties"] = False
        patterns: dict[str, Said] = {}
        for pattern, inner in keywords.get("patternProperties", {}).items():
            said = self.lower(inner)
            names = self._few_names(node, pattern)
            if names is None:
                written = self._texts.written(node, pattern)
                patterns[written] = joined(patterns.get(written, True), [said], self._work)
                continue
            spend_copies(said, len(names), self._work)
            listed = out.setdefault("properties", {})
            listed |= {name: joined(listed.get(name, True), [said], self._work) for name in names}
        if not patterns:
            return
        everything = [pattern for pattern in patterns if is_everything(pattern)]
        if everything:
            every = patterns.pop(everything[0])
            spend_copies(every, len(patterns) + len(out.get("properties", ())), self._work)
            patterns = {
                one: joined({}, [said, every], self._work) for one, said in patterns.items()
            }
            for name, said in out.get("properties", {}).items():
                out["properties"][name] = joined({}, [said, every], self._work)
            out["additionalProperties"] = every
        patterns = by_schema(patterns, self._work)
        if (
            self._how.barely
            or not all(map(self._texts.takes, patterns))
            or (len(patterns) > 1 and not self._words.patterns_disjoint(list(patterns)))
        ):
            self.leave_out(node, "patternProperties", "additionalProperties")
            out.pop("additionalProperties", None)
            return
        if patterns:
            out["patternProperties"] = patterns

    def _few_names(self, node: Node, pattern: str) -> Sequence[str] | None:
        """Return the names of a pattern if they are few: said as properties, none comes twice. Not
        where properties are counted, which the library does without optional ones alone."""
        is_counted = not _SIZES.isdisjoint(node.keywords)
        return None if self._how.barely or is_counted else finite_texts(pattern)

    def _property_names(self, node: Node, rule: Node, out: dict[str, Any]) -> None:
        listed: dict[str, Said] = out.get("properties", {})
        told = {name: takes(rule, name) for name in listed}
        pattern = objects.name_pattern(rule)
        for name, allowed in told.items():
            if allowed is False:
                listed[name] = False
        if None in told.values():
            self.leave_out(node, "propertyNames")
        rest = out.get("additionalProperties", True)
        if pattern is True or (rest is False and "patternProperties" not in out):
            return
        if self._how.barely or pattern is None or "patternProperties" in out:
            self.leave_out(node, "propertyNames")
            return
        names = self._few_names(node, pattern) if isinstance(pattern, str) else ()
        if names is not None:
            spend_copies(rest, len(names), self._work)
            out["properties"] = listed | {one: rest for one in names if one not in listed}
        else:
            written = self._texts.written(node, str(pattern))
            # The pattern is for all names: those that are listed have a rule of their own.
            hits_listed = rest not in (True, {}) and any(one is not False for one in told.values())
            if hits_listed or not self._texts.takes(written):
                self.leave_out(node, "propertyNames")
                return
            out["patternProperties"] = {written: rest}
        out["additionalProperties"] = False

    def _unevaluated(self, node: Node, out: dict[str, Any], also: list[Said]) -> None:
        """Return what none lists of a schema and of what it is all of, whatever the value."""
        rule = node.keywords["unevaluatedProperties"]
        parts = _static_parts(node)
        if parts is None:
            self.leave_out(node, "unevaluatedProperties")
            return
        if any("additionalProperties" in part.keywords for part in parts):
            return
        names = {name: True for part in parts for name in part.keywords.get("properties", ())}
        patterns = {
            self._texts.written(part, one): True
            for part in parts
            for one in part.keywords.get("patternProperties", ())
        }
        said: dict[str, Any] = {"properties": names, "additionalProperties": self.lower(rule)}
        if patterns:
            said["patternProperties"] = patterns
        if len(parts) == 1:
            out["additionalProperties"] = said["additionalProperties"]
        else:
            also.append(said)

    def _sizes(self, node: Node, out: dict[str, Any], also: list[Said]) -> None:
        keywords = node.keywords
        least, most = keywords.get("minProperties", 0), keywords.get("maxProperties")
        if not least and most is None:
            return
        if self._how.barely:
            self.leave_out(node, "minProperties", "maxProperties")
            return
        listed, required = out.get("properties", {}), out.get("required", [])
        has_patterns = "patternProperties" in out
        is_open = has_patterns or out.get("additionalProperties", True) is not False
        required = [name for name in required if isinstance(name, str)]
        if objects.keeps_sizes(listed, required, has_patterns, is_open, least, most):
            if least:
                out["minProperties"] = int(least)
            if most is not None:
                out["maxProperties"] = int(most)
            return
        ways = None
        if not self._how.plainly:
            ways = objects.size_ways(listed, required, is_open, int(least), most)
            ways = _unless_none(ways, node, "object")
        before = len(also)
        self._ways(node, "minProperties" if least else "maxProperties", ways, also)
        if ways is None and least and most is not None and len(also) == before:
            self.leave_out(node, "maxProperties")


def _unless_none(ways: list[Said] | None, node: Node, kind: str) -> list[Said] | None:
    """Return a schema where no value of a type can be, but those of other types still can."""
    if ways != [False]:
        return ways
    others = types(node) - {kind}
    return [{"type": spelled(others)} if others else False]


def _type_of(value: JsonValue) -> str:
    """Return the type of what has a number in it."""
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number"


def _is_leaf(node: Node) -> bool:
    return _LEAF.issuperset(node.keywords) and len(node.keywords.get("enum", ())) <= 16


_LEAF = _COPIED - {"items"} | {"pattern", "format", "never"}


def _static_parts(node: Node, depth: int = 8) -> list[Node] | None:
    """The node and what it is all of; None where that depends on the value."""
    keywords = node.keywords
    if depth == 0 or not _CONDITIONAL.isdisjoint(keywords):
        return None
    parts = [node]
    for inner in (*keywords.get("allOf", ()), *filter(None, [keywords.get("$ref")])):
        found = _static_parts(inner, depth - 1)
        if found is None:
            return None
        parts += found
    return parts


_CONDITIONAL = frozenset({"anyOf", "oneOf", "if", "dependentSchemas", "malformed"})

_SPELLED = {
    "dependentRequired": "dependencies",
    "dependentSchemas": "dependencies",
    "items": "additionalItems",
}


def _as_written(node: Node, keyword: str) -> str:
    older = _SPELLED.get(keyword, keyword)
    return older if isinstance(node.raw, dict) and keyword not in node.raw else keyword
