"""The report: one self-contained HTML page from run folders."""

from ibpwf.lab.report.page import make_page, write_report

__all__ = ["make_page", "write_report"]
