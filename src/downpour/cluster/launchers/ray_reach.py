"""Checks that a Ray cluster answers and accepts this process's token.

If a cluster refuses the token, Ray's own `init` retries for 20 s, with a warning each second, and
then says that it could not connect. One call of Ray's client tells us at once. That client is not
part of Ray's public interface; with a Ray that lacks it, we wait for the answer of `init`.
"""

from __future__ import annotations

import logging
import os
from socket import create_connection

_RAY_PORT = 6379
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
_SOME_CLUSTER = "01" * 28
"""Ray checks the token before it sees that no cluster has this ID."""
_REFUSED = "RPC error: InvalidAuthToken: "
_FORGOTTEN = "WrongClusterID"
_PLACES = "RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"


def reach(address: str) -> None:
    """Raise an error if this process cannot use the Ray cluster at an address, or at `auto`.

    Raises:
        SpecError: the text is not an address.
        OSError: nothing listens there, or no Ray runs here, or several do.
        ValueError: RAY_ADDRESS is not an address.
        PermissionError: the cluster requires a token, and this process has none or another one.
    """
    if address != "auto":
        _show_token(_connect(address), found_here=False)
    elif "://" not in os.environ.get("RAY_ADDRESS", ""):  # with that, Ray asks a proxy
        found = _find()
        try:
            place = _connect(found)
        except OSError:
            reason = f"no Ray answers at {found}; `ray start --head` starts one here"
            raise ConnectionError(reason) from None
        _show_token(place, found_here=not os.environ.get("RAY_ADDRESS"))


def refuse_forgotten() -> None:
    """Raise ConnectionError if Ray's head has restarted since this process connected.

    Such a head knows none of our actors. Ray's other calls then hang, or abort the process.
    """
    import ray
    from ray.experimental.internal_kv import _internal_kv_exists

    try:
        _internal_kv_exists(b"downpour")
    except ray.exceptions.RayError as error:
        if _FORGOTTEN in str(error):
            reason = "Ray's head has restarted and lost the workers; run the command again"
            raise ConnectionError(reason) from None


def _find() -> str:
    """Return the address of the Ray that RAY_ADDRESS names, or of the only one that runs here."""
    from ray._private.services import canonicalize_bootstrap_address_or_die, find_gcs_addresses

    # Ray itself would take the cluster that started last, which may be another user's.
    found = sorted(find_gcs_addresses())  # type: ignore[no-untyped-call]
    if not os.environ.get("RAY_ADDRESS") and len(found) > 1:
        several = f"several Ray clusters run here, at {' and '.join(found)}"
        raise ConnectionError(f"{several}; name one with --ray-address")
    try:
        return str(canonicalize_bootstrap_address_or_die("auto"))
    except ConnectionError:
        raise ConnectionError("no Ray runs here; `ray start --head` starts one") from None


def _connect(address: str) -> str:
    """Return HOST:PORT of an address at which something listens."""
    from downpour.network.rpc import parse_address  # the command's help must not wait for it

    place = parse_address(address, field="ray_address", default_port=_RAY_PORT)
    create_connection((place.host, place.port), _CONNECT_SECONDS).close()
    return str(place)


def _show_token(place: str, *, found_here: bool) -> None:
    """Raise PermissionError if a cluster refuses the token that Ray would show it.

    Like Ray, show a token unasked only to a cluster that we found on this machine.
    """
    import ray

    try:
        from ray._private.authentication import authentication_token_setup as setup
        from ray._raylet import InnerGcsClient  # type: ignore[attr-defined]
    except ImportError:
        return
    try:
        if found_here:
            setup.logger.setLevel(logging.ERROR)  # its notice would appear in our output
            setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        setup.ensure_token_if_auth_enabled(create_token_if_missing=False)
    except ray.exceptions.RayError as error:
        raise PermissionError(_advice(error)) from None
    try:
        client = InnerGcsClient.standalone(place, _SOME_CLUSTER, round(1000 * _ANSWER_SECONDS))
        client.check_alive([], timeout=_ANSWER_SECONDS)
    except ray.exceptions.RayError as error:
        if _REFUSED in str(error):
            raise PermissionError(_advice(error)) from None


def _advice(error: Exception) -> str:
    """Return Ray's reason without its long help, and the remedy."""
    reason = str(getattr(error, "message", error)).removeprefix(_REFUSED)
    mode = os.environ.get("RAY_AUTH_MODE", "")
    set_mode = "" if mode.lower() == "token" else "set RAY_AUTH_MODE=token and "
    return f"Ray says: {reason}; {set_mode}put the cluster's token into {_PLACES}"
