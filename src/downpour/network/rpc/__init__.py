"""The only folder that knows Thrift: messages as values, clients, and how services are served.

Code outside this folder never sees structs, transports or Thrift exceptions. A class that
implements `ManagerService` or `WorkerService` receives values and answers with values; callers use
`ManagerClient` or `WorkerClient`. Parameters never travel here: messages carry data indices and the
names of files.
"""

from downpour.network.rpc.client import ManagerClient, WorkerClient
from downpour.network.rpc.connection import CALL_SECONDS
from downpour.network.rpc.generated.constants import PROTOCOL
from downpour.network.rpc.messages import (
    PACKED_BYTES_MAX,
    ExperimentSummary,
    Heartbeat,
    HeartbeatReply,
    IndexArray,
    IndicesFile,
    ManagerInfo,
    PackedIndices,
    RecordPage,
    Registered,
    Registration,
    Status,
    TaskMessage,
    TaskStatus,
    WorkerInfo,
    WorkerStatus,
    pack_indices,
    unpack_indices,
)
from downpour.network.rpc.server import Limits, Server, listen
from downpour.network.rpc.services import ManagerService, WorkerService, serve_manager, serve_worker
from downpour.network.rpc.trust import OPEN, Address, Trust, parse_address

__all__ = [
    "CALL_SECONDS",
    "OPEN",
    "PACKED_BYTES_MAX",
    "PROTOCOL",
    "Address",
    "ExperimentSummary",
    "Heartbeat",
    "HeartbeatReply",
    "IndexArray",
    "IndicesFile",
    "Limits",
    "ManagerClient",
    "ManagerInfo",
    "ManagerService",
    "PackedIndices",
    "RecordPage",
    "Registered",
    "Registration",
    "Server",
    "Status",
    "TaskMessage",
    "TaskStatus",
    "Trust",
    "WorkerClient",
    "WorkerInfo",
    "WorkerService",
    "WorkerStatus",
    "listen",
    "pack_indices",
    "parse_address",
    "serve_manager",
    "serve_worker",
    "unpack_indices",
]
