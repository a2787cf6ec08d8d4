"""Messages described in a table -> classes that read and write them.

Not a package of stubs: those write over other packages' files (`opentelemetry`, `google`), or want
a protobuf that engines do not have (DESIGN.md, decision 12). The wire is the same; the package
name is our own, so that whoever has loaded others' stubs as well sees no symbol twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

STRUCT: Final = "google.protobuf.Struct"

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
}


class Described:
    """`messages`: name -> its fields, separated by commas: number, name, type. `*Type` is repeated;
    a name in braces belongs to the message's oneof. An enum is an int32, an entry of a map a
    repeated message of key and value: the same on the wire."""

    def __init__(self, package: str, messages: Mapping[str, str]) -> None:
        self._package = package
        self._pool = descriptor_pool.DescriptorPool()
        self._pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
        self._pool.AddSerializedFile(_file(package, messages).SerializeToString())

    def __getitem__(self, name: str) -> Any:
        """The class. Made at run time, it has no types that a checker knows."""
        found = self._pool.FindMessageTypeByName(f"{self._package}.{name}")
        return message_factory.GetMessageClass(found)


def _file(package: str, messages: Mapping[str, str]) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3"
    )
    file.dependency.append(struct_pb2.DESCRIPTOR.name)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for described in fields.split(", "):
            _add_field(message, package, *described.split())
    return file


def _add_field(
    message: descriptor_pb2.DescriptorProto, package: str, number: str, name: str, kind: str
) -> None:
    field = message.field.add(name=name.strip("{}"), number=int(number))
    field.label = _FIELD.LABEL_REPEATED if kind[0] == "*" else _FIELD.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    field.type = _SCALARS.get(kind, _FIELD.TYPE_MESSAGE)
    if field.type == _FIELD.TYPE_MESSAGE:
        field.type_name = f".{kind}" if "." in kind else f".{package}.{kind}"
    if name[0] == "{":
        if not message.oneof_decl:
            message.oneof_decl.add(name="kind")
        field.oneof_index = 0
