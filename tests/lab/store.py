"""What the hosts of a lab have in common, served by a host of its own, over the links.

`folder`: a file system of GlusterFS, one brick without replication, mounted by every host. The
kernel of a plain virtual machine often lacks an NFS client, and this one needs only FUSE. It is a
shared folder as small companies have them: locks reach other hosts, hosts keep names and attributes
for a second, and each request takes a round trip. It says nothing of what NFS clients do.

`objects`: a bucket of `moto`, an S3 server that keeps objects in memory and honours conditions.
One process answers, so a real store has more hands.
"""

import sys
from pathlib import Path

from tests.files.objects.lab import environment, why_not
from tests.lab.failing import until, why_missing
from tests.lab.hosts import LabHost

BUCKET = "lab"
_PORT = 24007
_S3_PORT = 9000
_GONE_SECONDS = 8
"""After this long a silent host loses its locks, and requests to a silent store fail: 42 if not
said, which makes every test of a takeover wait."""
_SERVER = """
volume files
  type storage/posix
  option directory {export}
end-volume
volume locks
  type features/locks
  subvolumes files
end-volume
volume threads
  type performance/io-threads
  subvolumes locks
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address {address}
  option transport.socket.listen-port {port}
  option transport.tcp-user-timeout {gone_seconds}
  option transport.socket.keepalive-time {gone_seconds}
  option transport.socket.keepalive-interval 1
  option transport.socket.keepalive-count 3
  option auth.addr.threads.allow *
  subvolumes threads
end-volume
"""
_CLIENT = """
volume store
  type protocol/client
  option transport-type tcp
  option remote-host {address}
  option remote-port {port}
  option remote-subvolume threads
  option ping-timeout {gone_seconds}
  option transport.tcp-user-timeout {gone_seconds}
end-volume
volume behind
  type performance/write-behind
  subvolumes store
end-volume
"""
_MAKE_BUCKET = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], method="PUT")
urllib.request.urlopen(request).close()
"""


def why_no_folder() -> str:
    """Say in a few words what is missing for a folder; empty if nothing is."""
    if not Path("/dev/fuse").exists():
        return "a lab's folder needs FUSE in the kernel"
    return why_missing("glusterfsd", "glusterfs-server")


def why_no_objects() -> str:
    """Say in a few words what is missing for a bucket."""
    reason = why_not()
    return f"a lab's bucket {reason}" if reason else ""


def serve_folder(lab: Path, store: LabHost) -> None:
    """Let a host serve the folder `export` in the lab's folder."""
    (lab / "export").mkdir(exist_ok=True)
    server, log = store.home / "server.vol", store.home / "glusterfsd.log"
    values: dict[str, object] = {"export": lab / "export", "address": store.address, "port": _PORT}
    values["gone_seconds"] = _GONE_SECONDS
    server.write_text(_SERVER.format(**values))
    (lab / "client.vol").write_text(_CLIENT.format(**values))
    store.start("glusterfsd", "-N", "-f", server, "-l", log, output=-3, errors=-3)
    listening = f"{store.address}:{_PORT} "
    until("the store serves its folder", lambda: listening in store.run("ss", "-Hltn"))


def mount_folder(lab: Path, host: LabHost, folder: Path) -> None:
    """Let a host see the folder."""
    folder.mkdir(exist_ok=True)
    log = host.home / "glusterfs.log"
    words = ["glusterfs", "-N", "-f", lab / "client.vol", "-l", log, folder]
    host.start(*words, output=-3, errors=-3)
    mounts = Path(f"/proc/{host.process}/mounts")
    until(f"{host.name} has mounted the folder", lambda: f" {folder} fuse." in mounts.read_text())
    host.run("ls", folder)


def serve_objects(store: LabHost) -> dict[str, str]:
    """Let a host serve a bucket; returns the variables by which the others find it."""
    log = (store.home / "moto.log").open("w")
    words = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", _S3_PORT]
    with log:
        store.start(*words, output=log, errors=log)
    endpoint = f"http://{store.address}:{_S3_PORT}"
    listening = f":{_S3_PORT} "
    until("the store serves objects", lambda: listening in store.run("ss", "-Hltn"))
    store.run(sys.executable, "-c", _MAKE_BUCKET, f"{endpoint}/{BUCKET}")
    return environment(endpoint)
