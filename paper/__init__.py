"""The experiments of the ICL paper (WSDM 2023): ``python -m paper run|show|report``."""
