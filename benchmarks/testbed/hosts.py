"""Hosts as network namespaces, joined by switches; every link has a limited rate."""

from benchmarks.testbed.names import left_over, own, run, try_run

TOOLS = ("ip", "tc")

_BURST_BYTES = 1 << 18
_LATENCY = "50ms"


class Host:
    """A host with one address in each network.

    Attributes
    ----------
    name
        Name of its namespace.
    addresses
        Its IPv4 address in each network, by the network's number.
    """

    def __init__(self, number: int) -> None:
        self.name = f"{own()}-h{number}"
        self.addresses: list[str] = []
        self._number = number
        run("ip", "netns", "add", self.name)
        run("ip", "-n", self.name, "link", "set", "lo", "up")

    def command(self, *words: object) -> list[str]:
        """Return the command that runs another one on this host."""
        return ["ip", "netns", "exec", self.name, *map(str, words)]

    def join(self, switch: "Switch", bits_s: int | None) -> None:
        """Add a link to a network, limited in both directions to `bits_s` bits per second, if
        given.
        """
        card, port = f"eth{len(self.addresses)}", f"h{self._number}"
        on_switch, here = ("ip", "-n", switch.name), ("ip", "-n", self.name)
        ends = ("type", "veth", "peer", "name", card, "netns", self.name)
        run(*on_switch, "link", "add", port, *ends)
        run(*on_switch, "link", "set", port, "master", "bridge", "up")
        if switch.is_shared:
            # The port sends to the medium only, and every port gets all frames from there.
            run(*on_switch, "link", "set", "dev", port, "type", "bridge_slave",
                "isolated", "on", "learning", "off")  # fmt: skip
        address = switch.address(self._number)
        run(*here, "address", "add", f"{address}/24", "dev", card)
        run(*here, "link", "set", card, "up")
        if bits_s is not None:
            for name, device in ((self.name, card), (switch.name, port)):
                _limit(name, device, bits_s)
        self.addresses.append(address)

    def close(self) -> None:
        """Remove the namespace, and its links with it."""
        try_run("ip", "netns", "delete", self.name)


class Switch:
    """A network: a bridge in a namespace of its own, unreachable from outside.

    With `shared_bits_s` it is a hub: all frames pass one medium of this rate, in bits per second.
    """

    def __init__(self, number: int, shared_bits_s: int | None = None) -> None:
        self.name = f"{own()}-s{number}"
        self.is_shared = shared_bits_s is not None
        self._number = number
        self._medium = f"{own()}-m{number}"
        _make_bridge(self.name)
        if shared_bits_s is not None:
            self._share(shared_bits_s)

    def _share(self, bits_s: int) -> None:
        """Lead all frames over one limited link to a bridge that sends them back."""
        _make_bridge(self._medium)
        run("ip", "-n", self.name, "link", "add", "medium", "type", "veth",
            "peer", "name", "port", "netns", self._medium)  # fmt: skip
        for name, device in ((self.name, "medium"), (self._medium, "port")):
            run("ip", "-n", name, "link", "set", "dev", device, "master", "bridge", "up")
        slave = ("type", "bridge_slave")
        run("ip", "-n", self.name, "link", "set", "dev", "medium", *slave, "learning", "off")
        run("ip", "-n", self._medium, "link", "set", "dev", "port", *slave, "hairpin", "on")
        _limit(self.name, "medium", bits_s)

    def address(self, host: int) -> str:
        """Return the address of a host in this network."""
        return f"10.{77 + self._number}.0.{host + 1}"

    def close(self) -> None:
        """Remove its namespaces."""
        for name in (self.name, self._medium):
            try_run("ip", "netns", "delete", name)


def _make_bridge(namespace: str) -> None:
    run("ip", "netns", "add", namespace)
    run("ip", "-n", namespace, "link", "add", "bridge", "type", "bridge")
    run("ip", "-n", namespace, "link", "set", "bridge", "up")


def _limit(namespace: str, device: str, bits_s: int) -> None:
    run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf",
        "rate", f"{bits_s}bit", "burst", _BURST_BYTES, "latency", _LATENCY)  # fmt: skip


def clean() -> None:
    """Remove the namespaces of dead processes."""
    names = [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line]
    for name in left_over(names):
        try_run("ip", "netns", "delete", name)
