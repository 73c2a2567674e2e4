"""What must be right before a server starts."""

from gpushare.process import connect_api_server, try_to_listen
from gpushare.server import tls
from gpushare.settings import Address, Reading


def check_start(
    kubeconfig: str | None, files: tls.TlsFiles | None, public_listen: Address
) -> list[str]:
    """Return complaints of a server that follows the cluster; empty if it can start."""
    complaints: list[str] = []
    if cluster := connect_api_server(kubeconfig, complaints):
        cluster.close()
    if files:
        complaints += tls.check_tls_files(files)
    try_to_listen("PUBLIC_LISTEN", public_listen, complaints)
    return complaints


def check_ports(env: Reading, listen: Address, public: Address) -> None:
    """Complain if both listeners have one port, and about misspelt settings."""
    if listen.port == public.port:
        env.complain(
            "PUBLIC_LISTEN",
            f"{public} has the port of GPUSHARE_LISTEN; "
            "the two listeners need different ports",
        )
    env.misspelt()
