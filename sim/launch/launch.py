"""A launch with everything found out: the model, its formats, the layout, and the rules that it breaks."""

from __future__ import annotations

from pathlib import Path

from pydantic import SerializeAsAny

from sim.errors import InputError, LayoutError
from sim.launch.checkpoints import find_checkpoint, find_precision
from sim.launch.layouts import layout_of
from sim.launch.rules import Broken, broken_rules
from sim.launch.settings import Settings
from sim.model import LayerRun, Model
from sim.noun import Noun
from sim.strategy import Strategy
from sim.workload import Precision

OWN_LAYER = (
    "mtp",
    "deepseek_mtp",
    "qwen3_next_mtp",
    "glm4_moe_mtp",
    "NEXTN",
    "EAGLE",
    "EAGLE3",
    "MTP",
    "eagle",
    "eagle3",
)
"""Ways of drafting with a layer of the model's own kind, which has a cache of its own."""


class Launch(Noun):
    """What an engine is asked to run."""

    settings: Settings
    model: Model
    precision: Precision
    layout: SerializeAsAny[Strategy] | None
    """``None`` where the layout cannot exist; ``reasons`` says why."""
    broken: tuple[Broken, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs that the launch asks for."""
        s = self.settings
        if self.layout is not None:
            return self.layout.gpus(self.model)
        return s.tp * s.pp * s.pcp * s.cp * (1 if s.attention_dp else s.dp)

    @property
    def loaded(self) -> Model:
        """The model with the layer that drafts, where there is one."""
        s, model = self.settings, self.model
        if not s.draft_tokens or s.draft_method not in OWN_LAYER:
            return model
        fields = {name: getattr(model, name) for name in Model.model_fields}
        return Model(**{**fields, "tail": (*model.tail, LayerRun(count=1, layer=model.runs[-1][1]))})


def resolve(settings: Settings, config: Path | None = None) -> Launch:
    """Find model, formats and layout of a launch.

    Raises
    ------
    InputError
        If the model is not known or a format is not; a layout that cannot exist is no error but has ``reasons``.
    """
    checkpoint = find_checkpoint(settings.model, config)
    model, precision = checkpoint.model, find_precision(settings, checkpoint)
    layout: Strategy | None = None
    reasons: tuple[str, ...] = ()
    try:
        layout = layout_of(settings, model)
        if problems := layout.check(model, "decode"):
            raise LayoutError(problems)
    except InputError as error:
        layout, reasons = None, tuple(p.message for p in error.problems)
    return Launch(
        settings=settings,
        model=model,
        precision=precision,
        layout=layout,
        broken=broken_rules(settings, model, precision.weights or "bf16"),
        reasons=reasons,
        notes=(*checkpoint.notes, *model.not_modelled),
    )
