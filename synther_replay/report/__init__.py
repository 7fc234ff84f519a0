"""Quality report: synthetic against real rows on one HTML page, or in a notebook."""

from synther_replay.report.quality import QualityReport, report

__all__ = ["QualityReport", "report"]
