"""Report: one page about a stream and a time, computed on Spark, written as one file of HTML."""

from penstock.spark.report.figures import Figures
from penstock.spark.report.page import render
from penstock.spark.report.study import Study
from penstock.spark.report.subject import Subject
from penstock.spark.report.window import Window

__all__ = ["Figures", "Study", "Subject", "Window", "render"]
