"""The parts of the help of `inferway serve` and `inferway epp`, each with an example."""

from inferway.config.setting import FlagGroup

_SERVE = "inferway serve http://10.0.0.5:8000"

ENGINES = FlagGroup("Engines", f"{_SERVE} http://10.0.0.6:8000,name=second")
DISCOVERY = FlagGroup(
    "Discovery of engines that come and go",
    "inferway serve --engines-dns http://vllm.default.svc:8000",
)
LISTENING = FlagGroup("Listening and TLS", f"{_SERVE} --host 0.0.0.0 --port 80")
PROMPTS = FlagGroup("Prompts", f"{_SERVE} --chat-template org/model=chat.jinja")
INDEX = FlagGroup("Index of cached blocks", f"{_SERVE} --state-dir /var/lib/inferway")
GATEWAYS = FlagGroup("Several gateways", f"{_SERVE} --peers gateways.default.svc:7400")
SCHEDULING = FlagGroup("Scheduling", f"{_SERVE} http://10.0.0.6:8000 --policy least-load")
LIMITS = FlagGroup("Limits and queues", f"{_SERVE} --engine-in-flight 64 --queue 500")
FAILURES = FlagGroup(
    "Engines that fail",
    "inferway serve --config gateway.yaml --attempts 2 --ejection-failures 3",
)
STRUCTURED = FlagGroup("Structured output", f"{_SERVE} --structured-trial-compile")
SECURITY = FlagGroup("Security", f"{_SERVE} --api-keys keys.yaml")
OBSERVABILITY = FlagGroup("Observability", f"{_SERVE} --publish tcp://*:5558 --access-log none")

# Those that stand behind the engines in the help of `inferway serve`
SERVING = (
    LISTENING, PROMPTS, INDEX, GATEWAYS, SCHEDULING, LIMITS, FAILURES, STRUCTURED, SECURITY,
    OBSERVABILITY,
)  # fmt: skip

PICKING = FlagGroup("Picking for a proxy", "inferway epp --pool-name vllm --grpc-port 9002")
PICKER_TLS = FlagGroup(
    "TLS with the proxy",
    "inferway epp --pool-name vllm --cert-path /certs --enable-cert-reload",
)
