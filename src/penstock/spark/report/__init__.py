"""Report: one page about a stream and a time, computed on Spark, written as one file of HTML."""

from penstock.spark.report.figures import Figures, TimeAxis, Window
from penstock.spark.report.page import render
from penstock.spark.report.query import ReportQuery
from penstock.spark.report.target import Target

__all__ = ["Figures", "ReportQuery", "Target", "TimeAxis", "Window", "render"]
