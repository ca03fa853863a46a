"""The syphon as a Spark job: carries what was diverted back to the primary."""

from tandem.spark.connector.options import OptionError
from tandem.spark.syphon.job import SyphonSettings, run

__all__ = ["OptionError", "SyphonSettings", "run"]
