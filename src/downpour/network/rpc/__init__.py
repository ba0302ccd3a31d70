"""The only folder that knows Thrift: messages as values, clients, and how services are served.

Code outside this folder never sees structs, transports or Thrift exceptions. A class that
implements `ManagerService` or `WorkerService` receives values and answers with values; callers use
`ManagerClient` or `WorkerClient`. Parameters never travel here, only indices and files' names.
"""

from downpour.network.rpc.connection import CALL_SECONDS, ManagerClient, WorkerClient
from downpour.network.rpc.generated.constants import PROTOCOL
from downpour.network.rpc.server import listen
from downpour.network.rpc.trust import Address, Trust, parse_address
from downpour.network.rpc.wire import serve_manager, serve_worker
