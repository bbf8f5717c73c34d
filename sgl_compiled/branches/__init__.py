"""TAPER: fork-aware scheduling of branches, decided step by step. Pure except for :mod:`.scheduler`."""

from .group import Group, GroupTable, Row
from .policy import CapPolicy, EagerPolicy, Policy, make_policy
from .predictor import PredictorSettings, StepFeatures, StepTimePredictor
from .slo import BranchSettings, Slo, load_settings
from .tags import POLICY_KEY, TAG, BranchTag, parse_tag
from .taper import TaperPolicy, TaperSettings
from .view import Decision, StepView

__all__ = [
    "POLICY_KEY",
    "TAG",
    "BranchSettings",
    "BranchTag",
    "CapPolicy",
    "Decision",
    "EagerPolicy",
    "Group",
    "GroupTable",
    "Policy",
    "PredictorSettings",
    "Row",
    "Slo",
    "StepFeatures",
    "StepTimePredictor",
    "StepView",
    "TaperPolicy",
    "TaperSettings",
    "load_settings",
    "make_policy",
    "parse_tag",
]
