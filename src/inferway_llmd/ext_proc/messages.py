"""Envoy's messages, as far as we use them: field numbers of envoy/service/ext_proc/v3."""

from __future__ import annotations

from typing import Any, Final

from inferway_llmd.ext_proc.descriptors import STRUCT, Described

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD: Final = "Process"

# envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.BodySendMode
NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED = range(5)

_DESCRIBED = {
    "HeaderValue": "1 key string, 2 value string, 3 raw_value bytes",
    "HeaderMap": "1 headers *HeaderValue",
    "HeaderValueOption": "1 header HeaderValue, 3 append_action int32",
    "HeaderMutation": "1 set_headers *HeaderValueOption, 2 remove_headers *string",
    "HttpHeaders": "1 headers HeaderMap, 3 end_of_stream bool",
    "HttpBody": "1 body bytes, 2 end_of_stream bool",
    "HttpTrailers": "1 trailers HeaderMap",
    "Untyped": f"1 key string, 2 value {STRUCT}",  # an entry of map<string, Struct>: same wire
    "Metadata": "1 filter_metadata *Untyped",
    "ProtocolConfiguration": "1 request_body_mode int32, 2 response_body_mode int32",
    "ProcessingRequest": (
        "2 {request_headers} HttpHeaders, 3 {response_headers} HttpHeaders,"
        " 4 {request_body} HttpBody, 5 {response_body} HttpBody,"
        " 6 {request_trailers} HttpTrailers, 7 {response_trailers} HttpTrailers,"
        " 8 metadata_context Metadata, 9 attributes *Untyped,"
        " 11 protocol_config ProtocolConfiguration"
    ),
    "StreamedBodyResponse": "1 body bytes, 2 end_of_stream bool",
    "BodyMutation": "1 {body} bytes, 3 {streamed_response} StreamedBodyResponse",
    "CommonResponse": (
        "2 header_mutation HeaderMutation, 3 body_mutation BodyMutation, 5 clear_route_cache bool"
    ),
    "HeadersResponse": "1 response CommonResponse",
    "BodyResponse": "1 response CommonResponse",
    "TrailersResponse": "1 header_mutation HeaderMutation",
    "HttpStatus": "1 code int32",
    "ImmediateResponse": (
        "1 status HttpStatus, 2 headers HeaderMutation, 3 body bytes, 5 details string"
    ),
    "ProcessingResponse": (
        "1 {request_headers} HeadersResponse, 2 {response_headers} HeadersResponse,"
        " 3 {request_body} BodyResponse, 4 {response_body} BodyResponse,"
        " 5 {request_trailers} TrailersResponse, 6 {response_trailers} TrailersResponse,"
        f" 7 {{immediate_response}} ImmediateResponse, 8 dynamic_metadata {STRUCT}"
    ),
}
_MESSAGES = Described("inferway_llmd.ext_proc", _DESCRIBED)

ProcessingRequest: Final[Any] = _MESSAGES["ProcessingRequest"]
ProcessingResponse: Final[Any] = _MESSAGES["ProcessingResponse"]
