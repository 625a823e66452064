"""Workbooks of Excel and LibreOffice: zip archives of XML, of which one sheet is read."""
