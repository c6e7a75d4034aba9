"""Messages on the links of a machine: alone each takes what it costs, on shared links all wait, faults redirect."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.catalog.gpus import load_gpu
from sim.catalog.topologies import parse_topology
from sim.conditions import Conditions, Fault, Traffic
from sim.engine import Clock
from sim.errors import TopologyError
from sim.machine import assemble
from sim.network.links import Links
from sim.network.transport import FabricTransport
from sim.program import Message
from sim.schedule import Rendezvous

GIB = 2**30


def build(gpu="h200-sxm", topology="hgx-8", **conditions):
    found = load_gpu(gpu)
    return assemble(found, parse_topology(topology).build(found), Conditions(**conditions))


def carry(machine, messages, until=None):
    """When each message (start, kind, gpus, bytes) has arrived, and the transport."""
    env, done = simpy.Environment(), {}

    def later(delay, call):
        env.timeout(delay).callbacks.append(lambda _: call())

    transport = FabricTransport(machine, Clock(lambda: env.now, later))
    for i, (start, kind, gpus, size) in enumerate(messages):
        seconds = machine.collectives.cost(kind, gpus).seconds(size)
        view = Rendezvous((0, gpus), len(gpus), seconds, 0.0, Message(size, size), kind, gpus)
        later(start, lambda v=view, i=i: transport.begin(v, lambda: done.__setitem__(i, env.now)))
    env.run(until)
    return [done.get(i) for i in range(len(messages))], transport


def total(transport, number):
    return sum(use[0] for link, use in transport.use().items() if number(link))


KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "gather", "dispatch", "combine")


@pytest.mark.parametrize(
    ("gpu", "topology"), [("h200-sxm", "hgx-8"), ("gb200", "nvl72-36"), ("h100-sxm", "cluster-2"), ("l40s", "pcie-8")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_alone_a_message_takes_what_it_costs(gpu, topology, kind):
    """Exchanges too, although each of their messages is a flow of its own, on machines where all ranks sit alike."""
    machine = build(gpu, topology)
    gpus = tuple(range(4 if topology == "pcie-8" else len(machine.collectives.fabric)))
    for size in (1000, 2**20, 64 * 2**20):
        (seconds,), transport = carry(machine, [(0, kind, gpus, size)])
        assert seconds == pytest.approx(machine.collectives.cost(kind, gpus).seconds(size), rel=1e-9)
        loads = machine.collectives.link_bytes(kind, gpus, size)
        assert {link: use[0] for link, use in transport.use().items()} == pytest.approx(
            {link: load * size for link, load in loads.items()}, rel=1e-6
        )


def test_an_exchange_is_divided_into_a_flow_for_each_pair_when_it_meets_somebody():
    """Over a rack; a transfer that ends at GPU 1 halves what GPU 1 gets and leaves the others alone."""
    machine = build("gb200", "nvl72")
    gpus = tuple(range(72))
    (alone,), transport = carry(machine, [(0, "all_to_all", gpus, 2**28)])
    assert [len(flows) for flows in transport._known.values()] == [1]
    assert len(transport.links.members) == 144  # 18 chips that are alike count as one
    assert sum(len(members) for members in transport.links.members) == 2 * 72 * 18
    (meeting, _), transport = carry(machine, [(0, "all_to_all", gpus, 2**28), (0, "send", (0, 1), 2**34)])
    assert 72 * 71 in [len(flows) for flows in transport._known.values()]
    # 71 messages of the exchange and the transfer share the links of GPU 0 and of GPU 1 evenly
    fixed = machine.collectives.cost("all_to_all", gpus).used(2**28).fixed
    assert meeting - fixed == pytest.approx((alone - fixed) * 72 / 71, rel=1e-2)


def bandwidth(machine, kind="send", gpus=(0, 1)):
    return 1 / machine.collectives.cost(kind, gpus).seconds_per_byte


def test_messages_slow_each_other_on_shared_links_and_nowhere_else():
    machine = build()
    cost = machine.collectives.cost("send", (0, 1))
    fixed = cost.used(GIB).fixed
    alone = cost.seconds(GIB) - fixed
    for second, times in [((2, 3), 1), ((1, 0), 1), ((0, 2), 2), ((3, 1), 2)]:
        seconds, _ = carry(machine, [(0, "send", (0, 1), GIB), (0, "send", second, GIB)])
        assert seconds == pytest.approx([fixed + times * alone] * 2, rel=1e-9)


def test_a_kv_transfer_slows_a_collective_while_it_lasts():
    machine = build()
    cost = machine.collectives.cost("all_reduce", tuple(range(8)))
    used = cost.used(GIB)
    alone = cost.seconds(GIB)
    quarter = used.fixed + (alone - used.fixed) / 4
    sending = machine.collectives.cost("send", (0, 1)).used(GIB)
    size = ((alone - used.fixed) / 4 + sending.hidden) / sending.per_byte  # a quarter of that time where it is alone
    at = quarter - sending.fixed
    (reduced, sent), _ = carry(machine, [(0, "all_reduce", tuple(range(8)), GIB), (at, "send", (0, 1), size)])
    assert sent == pytest.approx(quarter + (alone - used.fixed) / 2, rel=1e-6)
    assert reduced == pytest.approx(alone + (alone - used.fixed) / 4, rel=1e-6)


def test_traffic_of_others_goes_on_and_does_not_hold_the_step():
    machine = build(background=(Traffic(kind="send", gpus=(0, 1), size=GIB, repeat=True),))
    (seconds,), transport = carry(machine, [(0, "send", (0, 2), GIB)], until=1.0)
    alone = GIB / bandwidth(machine)
    assert seconds == pytest.approx(2 * alone, rel=1e-2)
    sent = total(transport, lambda link: link[0] == "gpu0")
    assert sent == pytest.approx(1.0 * bandwidth(machine), rel=0.02)


def slow(machine, size=GIB):
    (seconds,), transport = carry(machine, [(0, "all_reduce", tuple(range(8)), size)])
    return seconds, transport


def test_a_link_that_is_slowed_on_the_way_delays_what_is_left():
    machine = build(collectives={"all_reduce": "ring"})
    whole, _ = slow(machine)
    fixed = machine.collectives.cost("all_reduce", tuple(range(8))).used(GIB).fixed
    half = fixed + (whole - fixed) / 2
    faults = (Fault(node="nvswitch0", speed=0.5, at=half),)
    late, transport = slow(build(collectives={"all_reduce": "ring"}, faults=faults))
    moving = transport.states[1].cost("all_reduce", tuple(range(8))).used(GIB)
    assert late == pytest.approx(half + moving.per_byte * (GIB - moving.hidden / moving.per_byte) / 2, rel=1e-3)
    assert late > 1.4 * whole
    again = (Fault(node="nvswitch0", speed=0.5, at=half, until=half + 1e-9),)
    assert slow(build(collectives={"all_reduce": "ring"}, faults=again))[0] == pytest.approx(whole, rel=1e-4)


def test_bytes_go_around_a_link_that_is_gone():
    """Cube mesh: GPU 0 and 1 are neighbours; without their link the bytes pass through another GPU."""
    machine = build("v100-sxm2-32gb", "dgx1", faults=(Fault(link=("gpu0", "gpu1"), at=5e-3),))
    _, transport = carry(machine, [(0, "send", (0, 1), GIB)])
    use = transport.use()
    direct = use["gpu0", "gpu1"].bytes
    around = sum(u.bytes for (a, b), u in use.items() if a == "gpu0" and b != "gpu1")
    assert 0 < direct < GIB
    assert direct + around == pytest.approx(GIB, rel=1e-9)
    assert sum(u.bytes for (_, b), u in use.items() if b == "gpu1") == pytest.approx(GIB, rel=1e-9)


def test_a_cut_on_the_way_names_both_sides_and_the_time():
    faults = tuple(Fault(link=("gpu3", f"nvswitch{i}"), at=1e-3) for i in range(4))
    machine = build(faults=faults)
    with pytest.raises(TopologyError, match=r"after 1 ms: hgx-8: nothing connects 'gpu0' and 'gpu3'; 'gpu0' reaches"):
        slow(machine)
    with pytest.raises(TopologyError, match="nothing connects"):
        slow(build(faults=tuple(f.model_copy(update={"at": 0.0}) for f in faults)))


def test_a_chip_that_is_gone_leaves_its_part_to_the_others():
    machine = build("gb200", "nvl72", faults=(Fault(node="nvswitch7"),))
    whole = build("gb200", "nvl72")
    for kind in ("all_to_all", "all_gather"):
        gpus = tuple(range(72))
        now, before = (m.collectives.cost(kind, gpus).floor_seconds_per_byte for m in (machine, whole))
        assert now == pytest.approx(before * 18 / 17, rel=1e-9)


def test_a_fault_that_does_not_exist_is_named_by_its_place():
    with pytest.raises(TopologyError) as error:
        build(faults=(Fault(gpu=0, speed=0.5), Fault(node="nvswich0"), Fault(link=("gpu0", "gpu1"))))
    assert [p.key for p in error.value.problems] == ["faults.1.node", "faults.2.link"]


FAULTS = st.builds(
    lambda node, speed, at, length: Fault(node=f"nvswitch{node}", speed=speed, at=at, until=at + length),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.25, 0.5]),
    st.floats(0, 4e-3),
    st.floats(1e-4, 4e-3),
)
MESSAGES = st.tuples(
    st.floats(0, 2e-3),
    st.sampled_from(["all_reduce", "all_to_all", "all_gather", "send"]),
    st.sampled_from([(0, 1), (2, 5), (7, 1)]),
    st.sampled_from([0, 1, 2**20, 2**28]),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(FAULTS, max_size=3), st.lists(MESSAGES, min_size=1, max_size=5))
def test_bytes_are_conserved_whatever_breaks(faults, messages):
    healthy, broken = build(), build(faults=tuple(faults))
    sent = {}
    for machine in (healthy, broken):
        seconds, transport = carry(machine, messages)
        assert all(s is not None for s in seconds)
        assert not transport._under_way
        sent[machine is broken] = total(transport, lambda link: link[0].startswith("gpu"))
    assert sent[True] == pytest.approx(sent[False], rel=1e-6)


def test_links_are_one_only_if_they_are_alike_in_every_state():
    gpu = load_gpu("gb200")
    fabric = parse_topology("nvl72").build(gpu)
    broken = build("gb200", "nvl72", faults=(Fault(node="nvswitch0"),)).collectives.fabric
    links = Links([fabric, broken])
    assert len(links.members) == 2 * 144  # the chip that goes apart
    for members, before, after in zip(links.members, *links.capacity, strict=True):
        assert before == pytest.approx(50e9 * len(members), rel=1e-12)
        assert after == (pytest.approx(50e9 * 17, rel=1e-12) if len(members) == 17 else 0)
    slow = build("gb200", "nvl72", faults=(Fault(node="nvswitch0", speed=0.5),)).collectives.fabric
    links = Links([fabric, slow])
    assert len(links.members) == 144  # it keeps its part, and all wait for it
    assert links.capacity[1] == pytest.approx([c / 2 for c in links.capacity[0]])
