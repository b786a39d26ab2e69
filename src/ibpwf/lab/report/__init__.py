"""The report: one self-contained HTML page from run folders."""

from ibpwf.lab.report.page import make_page, write_report
from ibpwf.lab.report.rendering import need_jinja2

__all__ = ["make_page", "need_jinja2", "write_report"]
